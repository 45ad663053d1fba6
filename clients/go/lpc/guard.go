package lpc

import "math"

// The numbers of eviction_client/guard.py, where they are explained.
const (
	keep          = 0.998
	noiseRequests = 500
	leastH        = 10.0
	kappa         = 0.7
	earn          = 1.5
	evidence      = 1.5
	atRisk        = 0.25
	debt          = 2.0
	largest       = 6.0
)

var accountKeep, gainKeep = math.Pow(0.5, 1.0/2000), math.Pow(0.5, 1.0/1000)

// Guard decides which rule orders: credit or least recent use, from what two shadow caches of this very traffic have hit under
// each. Least recent use is in force at the start. It is the guard of the client in Python, number by number.
type Guard struct {
	Trusting                            bool
	sum, gain, squares, weight, account float64
}

// Observe takes in what the two shadows hit of a request's sampled blocks; it returns whether credit is in force.
func (g *Guard) Observe(creditHits, lruHits int) bool {
	gain := float64(creditHits - lruHits)
	g.gain = gainKeep*g.gain + gain
	g.squares = gainKeep*g.squares + gain*gain
	g.weight = gainKeep*g.weight + 1
	deviation := math.Sqrt(g.squares / g.weight)
	counted := math.Min(math.Max(gain, -largest*deviation), largest*deviation)
	g.account *= accountKeep
	threshold := math.Max(leastH, kappa*deviation*math.Sqrt(noiseRequests))
	if g.Trusting {
		g.account += counted
		g.sum = math.Max(0, keep*g.sum-counted)
		threshold += atRisk * math.Max(g.account, 0)
	} else {
		g.sum = math.Max(0, keep*g.sum+counted)
		threshold = earn*threshold + debt*math.Max(-g.account, 0)
	}
	if g.sum > threshold && (g.Trusting || g.gain > evidence*math.Sqrt(g.squares/2)) {
		g.Trusting, g.sum = !g.Trusting, 0
	}
	return g.Trusting
}
