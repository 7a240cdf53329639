"""Models with attention on the paged path beside layers that keep states of fixed size."""
