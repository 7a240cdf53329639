"""The planner's search: meshes, layouts, greedy construction, local improvement."""
