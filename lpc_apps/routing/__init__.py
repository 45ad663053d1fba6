"""Which engine a request goes to, by what a router can know: the prompts that it has sent, and what answers report.

Without a clock, an event loop or a wire: the gateway and the simulator run the same code.
"""
