"""Cost models that are taught before a tuning begins: records of many devices and operators as one file (`export`,
`dataset`), with what models read of each record (`primitives`); parts of it to learn from and to be judged by, and
figures (`judging`); what learns (`networks`, `boosters`), and the models that come of it (`models`)."""
