"""Cost models of schedule points: `history` has the records that they go by, `guards` what is trusted of them."""
