"""SGLang's HTTP interface in front of the engine."""
