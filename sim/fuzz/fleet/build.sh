#!/bin/bash -eu
# Builds the fuzz target into $OUT, with the committed corpus as its seeds. The image provides
# $SRC, $OUT, $SANITIZER, cargo-fuzz and the nightly toolchain that it needs.
cd "$SRC/continuable"
cargo fuzz build --release --debug-assertions --fuzz-dir sim/fuzz choices
cp "sim/fuzz/target/$(rustc -vV | sed -n 's/^host: //p')/release/choices" "$OUT/"
zip --quiet --junk-paths "$OUT/choices_seed_corpus.zip" sim/corpus/choices/*
cp sim/fuzz/fleet/choices.options "$OUT/"
