"""What a plug-in shows of itself: metrics, and the reasons for misses."""
