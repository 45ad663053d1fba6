"""What simulated runs say to an operator: one sentence, one chart, what the traffic is like, how to switch it on."""
