"""Images, compose profiles and a pod in real containers: `make test-containers`."""
