"""`tas simulate`: a load placed by the default scores, by policies and by agents, compared."""
