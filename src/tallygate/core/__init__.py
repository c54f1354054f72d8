"""Pure rules and values: nothing here touches a store, a broker or Spark."""
