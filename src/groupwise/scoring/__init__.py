"""Running tasks' verifiers: in killable workers while training, over a file, and over gold and wrong answers."""
