"""Where rows go: each target keeps its rows and its ledger in one store."""
