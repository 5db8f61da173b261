"""The incident: two tenants, one template name, and a key that leaves out what matters."""
