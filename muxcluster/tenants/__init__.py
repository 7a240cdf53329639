"""API keys as tenants: what each may do, its limits over the cluster, and a ledger of its use."""
