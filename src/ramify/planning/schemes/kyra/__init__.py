"""Kyra (Cao and Singh, 2004) and its yardsticks FBR and MBR: zones of the content space per clique."""
