"""The Kafka sink: transactions that hold the rows and the ledger."""
