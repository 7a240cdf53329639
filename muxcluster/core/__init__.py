"""Words all layers share: requests, jobs, results, events and errors."""
