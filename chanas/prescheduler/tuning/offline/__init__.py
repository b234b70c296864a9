"""Cost models that are taught before a tuning begins: records of many devices and operators as one file (`export`,
`dataset`), with what models read of each record (`primitives`); parts of it to
learn from and to be judged by (`split`, `metrics`); models that learn (`networks`, `fit`, `boosters`) and their files
(`models`)."""
