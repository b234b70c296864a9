"""Cost models of schedule points: `base` says what one is, `features` what they see, one file for each of them."""
