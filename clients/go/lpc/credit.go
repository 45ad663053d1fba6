// Package lpc evicts prefix-cache blocks by learned credit, in engines written in Go.
//
//	key = t_last + credit    seconds since the epoch; the smallest is evicted
//
// Client asks the sidecar over one PredictStream, Cache keeps the blocks that nobody uses in the order of their keys and
// measures how long they live, and Engine joins the two. Without an answer the credit is 0 and the order is exactly LRU;
// nothing here waits for the sidecar.
package lpc

import (
	"fmt"
	"math"
	"sort"
)

// MaxCredit bounds a credit, seconds: what lies beyond is no credit.
const MaxCredit = 14400.0

// Grid is GetModelInfoResponse.credit_lifetimes_s: the lifetimes of caches, in seconds, at which a sidecar gives credits.
type Grid []float64

// Check says why a grid cannot be used; nil where it can.
func (g Grid) Check() error {
	if len(g) < 2 || len(g) > 256 {
		return fmt.Errorf("a grid of %d lifetimes cannot be used", len(g))
	}
	for i, lifetime := range g {
		if !(lifetime > 0) || math.IsInf(lifetime, 0) || (i > 0 && lifetime <= g[i-1]) {
			return fmt.Errorf("the lifetimes of a grid must be finite, above 0 and rising")
		}
	}
	return nil
}

// At returns the credit, seconds, of a table (Prediction.credit_s) in a cache of this lifetime, seconds: linear in the
// logarithm of the lifetime, constant beyond the grid. An error: the table does not fit the grid, or an entry is no credit.
func (g Grid) At(table []float32, lifetime float64) (float64, error) {
	if len(table) != len(g) || len(g) < 2 {
		return 0, fmt.Errorf("a credit table of %d entries does not fit a grid of %d", len(table), len(g))
	}
	for _, credit := range table {
		if !(math.Abs(float64(credit)) <= MaxCredit) { // NaN is not, either
			return 0, fmt.Errorf("a credit is not a number within %g s", MaxCredit)
		}
	}
	place := sort.Search(len(g), func(i int) bool { return g[i] > lifetime })
	if place == 0 {
		return float64(table[0]), nil
	}
	if place == len(g) {
		return float64(table[len(g)-1]), nil
	}
	low, high := float64(table[place-1]), float64(table[place])
	from, to := math.Log(g[place-1]), math.Log(g[place])
	return low + (high-low)*(math.Log(lifetime)-from)/(to-from), nil
}
