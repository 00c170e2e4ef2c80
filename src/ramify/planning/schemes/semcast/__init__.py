"""SemCast (Papaemmanouil and Cetintemel, 2005): channels by content overlap, with rendezvous points."""
