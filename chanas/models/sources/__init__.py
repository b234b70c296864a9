"""Sources of finished networks: ONNX files, programs of torch.export, torchvision, bundles."""
