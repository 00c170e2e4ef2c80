"""What to route where, and at what price: demand, plans, schemes, prices, the bound."""
