"""What a training is going to be, before it begins: a preset chosen by the images, and the plan that is printed."""
