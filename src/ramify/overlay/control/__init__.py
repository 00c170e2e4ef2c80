"""What brokers, clients and coordinators tell each other, and what follows from it. Pure."""
