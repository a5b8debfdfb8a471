"""What ranks do together besides moving tensors: describe partitions, compare what they are about to do, construct."""
