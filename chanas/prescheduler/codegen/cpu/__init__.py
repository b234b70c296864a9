"""CPU code: lowering, objects, static libraries."""
