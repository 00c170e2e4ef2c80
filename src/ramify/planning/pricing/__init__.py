"""Prices: what a plan costs on a demand, what no plan can beat, and the rules that a plan must keep."""
