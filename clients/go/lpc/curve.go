package lpc

import (
	"fmt"
	"math"
	"sort"

	"learnedprefixcache/lpcv1"
)

const (
	mostGroups = 64   // numbers of groups are below it
	mostEpoch  = 64   // characters
	steps      = 2    // ages within an interval at which values are tabulated
	tilt       = 1e-3 // of equal values the older block goes first
	mostHazard = 0.999
	leastRate  = 1e-12 // uses per second below which a rate counts as 0
)

// Edges are the bounds of the curves' intervals, seconds of age. The last one is the horizon.
var Edges = []float64{
	0, 1, 2.5, 5, 10, 15, 20, 27, 36, 45, 60, 75, 90, 120, 150, 180, 240, 300, 400, 500, 650, 800, 1000, 1300, 1800, 2400, 3600,
	5400, 7200, 14400,
}

// Knots are the ages, seconds, at which values are tabulated.
var Knots = knots()

// A Table holds a group's retention value at each of Knots, uses per second.
type Table []float64

// Values returns the retention values of a curve, given by its hazards: for each interval of Edges the probability of the next use
// in it, given none before. The value at an age is the Gittins index (Gittins 1979): the most uses per second of room that any
// further time of keeping the block brings. lpc/model/curve.py has the same in Python.
func Values(hazards []float32) Table {
	last := len(Knots) - 1
	waiting, pieces := make([]float64, 1, last+1), make([]float64, 0, last)
	waiting[0] = 1
	for i, hazard := range hazards {
		width := Edges[i+1] - Edges[i]
		rate := -math.Log1p(-math.Min(math.Max(float64(hazard), 0), mostHazard)) / width
		step := width / steps
		stays := math.Exp(-rate * step)
		for j := 0; j < steps; j++ {
			before := waiting[len(waiting)-1]
			piece := before * step
			if rate > leastRate {
				piece = before * (1 - stays) / rate
			}
			pieces, waiting = append(pieces, piece), append(waiting, before*stays)
		}
	}
	// Room is summed from the horizon, so that differences keep their digits where hardly any block still waits.
	room := make([]float64, last+1)
	for i := last - 1; i >= 0; i-- {
		room[i] = room[i+1] + pieces[i]
	}
	slope := func(age, later int) float64 {
		if spent := room[age] - room[later]; spent > 0 {
			return (waiting[age] - waiting[later]) / spent
		}
		return 0
	}
	hull, found := []int{last}, make(Table, last+1)
	for place := last - 1; place >= 0; place-- {
		steepest := slope(place, hull[len(hull)-1])
		for len(hull) > 1 {
			further := slope(place, hull[len(hull)-2])
			if further < steepest {
				break
			}
			hull, steepest = hull[:len(hull)-1], further
		}
		hull = append(hull, place)
		found[place] = steepest
	}
	found[last] = found[last-1] * Knots[last-1] / Knots[last]
	for i := range found {
		found[i] *= math.Pow(1+Knots[i], -tilt)
	}
	return found
}

// At returns the retention value at an age, seconds >= 0: linear between Knots, falling as 1 / age beyond the horizon.
func (t Table) At(age float64) float64 {
	place := sort.Search(len(Knots), func(i int) bool { return Knots[i] > age })
	switch {
	case place == 0:
		return t[0]
	case place == len(Knots):
		return t[place-1] * Knots[place-1] / age
	}
	return t[place-1] + (t[place]-t[place-1])*(age-Knots[place-1])/(Knots[place]-Knots[place-1])
}

// RetainSeconds returns the first of Knots at which the value lies below a price, uses per second; 0 without a price.
func (t Table) RetainSeconds(price float64) float64 {
	if !(price > 0) {
		return 0
	}
	for i, value := range t {
		if value < price {
			return Knots[i]
		}
	}
	return Knots[len(Knots)-1]
}

// tablesOf returns the tables of the groups in a message, by number. An error: they are not curves.
func tablesOf(curves *lpcv1.ReuseCurves) (map[uint32]Table, error) {
	if n := len(curves.GetEpoch()); n == 0 || n > mostEpoch {
		return nil, fmt.Errorf("an epoch of %d characters", n)
	}
	if !sameEdges(curves.EdgesS) {
		return nil, fmt.Errorf("the intervals are others than this client's")
	}
	tables := map[uint32]Table{}
	for _, curve := range curves.Curves {
		if curve.Group == 0 || curve.Group >= mostGroups || tables[curve.Group] != nil {
			return nil, fmt.Errorf("group %d is out of bounds, or there twice", curve.Group)
		}
		if len(curve.Hazards) != len(Edges)-1 {
			return nil, fmt.Errorf("a curve of %d intervals", len(curve.Hazards))
		}
		for _, hazard := range curve.Hazards {
			if !(hazard >= 0 && hazard <= 1) { // NaN is not, either
				return nil, fmt.Errorf("a hazard is not a probability")
			}
		}
		tables[curve.Group] = Values(curve.Hazards)
	}
	return tables, nil
}

// sameEdges says whether a sidecar's curves have the intervals of this package.
func sameEdges(edges []float64) bool {
	if len(edges) != len(Edges) {
		return false
	}
	for i, edge := range edges {
		if !(math.Abs(edge-Edges[i]) <= 1e-9*Edges[i]) {
			return false
		}
	}
	return true
}

func knots() []float64 {
	var ages []float64
	for i := 1; i < len(Edges); i++ {
		for j := 0; j < steps; j++ {
			ages = append(ages, Edges[i-1]+float64(j)*(Edges[i]-Edges[i-1])/steps)
		}
	}
	return append(ages, Edges[len(Edges)-1])
}
