"""A machine that runs brokers: its files, servers and processes, and what can be seen of them."""
