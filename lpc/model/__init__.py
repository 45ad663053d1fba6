"""What a model is: conversations, features, arrivals, artefacts and their versions. Knows neither gRPC nor an engine."""
