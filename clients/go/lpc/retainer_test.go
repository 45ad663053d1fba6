package lpc

import (
	"math"
	"testing"
	"time"

	"learnedprefixcache/lpcv1"
)

// An answer whose requests return at a constant rate, uses per second.
func returning(rate float64) Answer {
	hazards := make([]float32, len(Edges)-1)
	for i := range hazards {
		hazards[i] = float32(1 - math.Exp(-rate*(Edges[i+1]-Edges[i])))
	}
	return Answer{Table: Values(hazards)}
}

func TestAConstantRateIsItsOwnValue(t *testing.T) {
	table := returning(1e-4).Table
	for _, age := range []float64{0, 3, 100, 5000} {
		if value := table.At(age) / math.Pow(1+age, -tilt); math.Abs(value/1e-4-1) > 0.01 {
			t.Fatal(age, value)
		}
	}
	if beyond := table.At(2 * Edges[len(Edges)-1]); math.Abs(beyond/table[len(table)-1]-0.5) > 1e-9 {
		t.Fatal(beyond)
	}
}

func TestWhatReturnsOftenIsRetainedLongerThanWhatDoesNot(t *testing.T) {
	var r Retainer
	often := Answer{Table: Values(append([]float32{0.9, 0.9, 0.5}, make([]float32, len(Edges)-4)...))}
	seldom := returning(1e-6)
	if r.Seconds(often) != 0 || r.Seconds(Answer{}) != 0 {
		t.Fatal("there is no price yet")
	}
	r.Evicted(returning(1e-3), 10)
	long, short := r.Seconds(often), r.Seconds(seldom)
	if !(long > 0 && short == 0) {
		t.Fatal(long, short)
	}
	if mean := r.Seconds(Answer{}); math.Abs(mean-long/2) > 1e-9 {
		t.Fatal("without an answer it is the mean, not ", mean)
	}
}

func TestThePriceFollowsWhatIsEvicted(t *testing.T) {
	var r Retainer
	r.Evicted(Answer{}, 10)
	r.Evicted(returning(1e-3), math.NaN())
	if r.evicted != 0 {
		t.Fatal("nothing is known of these")
	}
	for n := 0; n < 20*lately; n++ {
		r.Evicted(returning(map[bool]float64{true: 1e-2, false: 1e-5}[n < lately]), 0)
	}
	if math.Abs(r.price/1e-5-1) > 0.01 {
		t.Fatal(r.price)
	}
}

func TestARetentionLastsForTheRetainSeconds(t *testing.T) {
	for _, of := range []struct {
		seconds  float64
		priority int
		duration time.Duration
	}{
		{140, Kept, 140 * time.Second},
		{39.5004, Kept, 39500 * time.Millisecond},
		{0, Gone, 0},
		{math.NaN(), Gone, 0},
		{1e9, Kept, 4 * time.Hour},
	} {
		if priority, duration := Retention(of.seconds); priority != of.priority || duration != of.duration {
			t.Fatal(of, priority, duration)
		}
	}
}

func TestWhatIsNotACurveIsRefused(t *testing.T) {
	good := make([]float32, len(Edges)-1)
	curve := func(group uint32, hazards []float32) *lpcv1.ReuseCurve {
		return &lpcv1.ReuseCurve{Group: group, Hazards: hazards}
	}
	with := func(hazard float64) []float32 { return append([]float32{float32(hazard)}, good[1:]...) }
	for _, curves := range [][]*lpcv1.ReuseCurve{
		{curve(0, good)}, {curve(64, good)}, {curve(1, good), curve(1, good)}, {curve(1, good[1:])},
		{curve(1, with(math.NaN()))}, {curve(1, with(1.5))}, {curve(1, with(-0.5))},
	} {
		if _, err := tablesOf(&lpcv1.ReuseCurves{Epoch: "e", EdgesS: Edges, Curves: curves}); err == nil {
			t.Fatal(curves)
		}
	}
	if _, err := tablesOf(&lpcv1.ReuseCurves{EdgesS: Edges}); err == nil {
		t.Fatal("an epoch without a name")
	}
	if _, err := tablesOf(&lpcv1.ReuseCurves{Epoch: "e", EdgesS: Edges[1:]}); err == nil {
		t.Fatal("other intervals")
	}
	if tables, err := tablesOf(&lpcv1.ReuseCurves{Epoch: "e", EdgesS: Edges, Curves: []*lpcv1.ReuseCurve{curve(63, good)}}); err != nil || len(tables) != 1 {
		t.Fatal(tables, err)
	}
	if !sameEdges(Edges) || sameEdges(Edges[1:]) || sameEdges(append([]float64{math.NaN()}, Edges[1:]...)) {
		t.Fatal("edges")
	}
}
