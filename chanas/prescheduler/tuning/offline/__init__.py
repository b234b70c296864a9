"""Cost models that are taught before a tuning begins: records of many devices and operators as one file (`export`,
`dataset`), with features of each record (`primitives`, `segments`)."""
