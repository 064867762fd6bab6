"""What a partition knows of its producers: epochs, sequences, transactions, and the snapshots of these."""
