//! The simulator's command line.

fn main() -> std::process::ExitCode {
    continuable_sim::cli::main()
}
