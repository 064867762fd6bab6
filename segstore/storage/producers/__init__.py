"""What a partition knows of its producers: sequences, snapshots, transactions."""
