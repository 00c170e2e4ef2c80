"""The live overlay on a simulated network, simulated servers and virtual time: one seed is one run.

clock      an event loop that jumps from timer to timer, and processes that can be stopped and killed
network    byte streams between processes and servers: slow, cut, silent
streams    JetStream's streams and consumers, as far as this project uses them
server     the NATS protocol and JetStream's API in front of them
"""
