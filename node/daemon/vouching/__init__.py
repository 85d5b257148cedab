"""A founder's node signs the seals of stages that have not earned their weight yet, without a slot there."""
