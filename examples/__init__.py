"""Pairs of scripts to diff (`cnn`, `gpt`), and `demo`, which trains them in every way and compares the digests."""
