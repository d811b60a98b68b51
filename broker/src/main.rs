//! `epochlog`: the reference broker, the controller, and the tools to look into a store folder.

fn main() {}
