"""Parts that the schemes of several papers use: grids, loads of cells, ways and shortest-path trees."""
