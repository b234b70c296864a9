"""Stage one: one network holds the weights of every architecture of a search space (paper, sections 3.3, 3.4).

In go a search space, an image data set and a training config; out come `checkpoint.safetensors` with its JSON, the
stored splits and the metrics of the run directory. `train.train_supernet` trains, `evaluate.SupernetEvaluator` reads.
"""
