//! The shared test kit: a whole runtime on a temporary directory, with a scripted model.
