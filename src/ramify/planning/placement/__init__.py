"""Who attaches where: users to brokers within capacities, at the least cost of access and core links."""
