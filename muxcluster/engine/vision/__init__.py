"""Language models that take images: their positions, their tower, and the images of rows."""
