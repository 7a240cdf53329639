"""Who holds KV blocks: admission, growth, lending, restoring, swapping and quotas."""
