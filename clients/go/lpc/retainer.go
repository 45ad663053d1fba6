package lpc

import (
	"math"
	"time"
)

// lately is over how many evicted blocks the price is averaged, and over how many requests their mean.
const lately = 1000

// Retainer gives requests of one cache their retain seconds. It measures the price of room there: the mean retention value of the
// blocks that the engine evicts. Not safe for concurrent use.
type Retainer struct {
	price, mean      float64
	evicted, retains int
}

// Evicted takes in that the engine has evicted a block of a request with this answer, so many seconds after its last use. Feed it from
// the engine's events of removed blocks.
func (r *Retainer) Evicted(answer Answer, age float64) {
	if answer.Table == nil || !(age >= 0) {
		return
	}
	follow(&r.price, answer.Table.At(age), &r.evicted)
}

// Seconds returns how long a request's blocks are worth their room after their last use: the mean of the latest requests for one
// without an answer, and 0 until a block was evicted.
func (r *Retainer) Seconds(answer Answer) float64 {
	if answer.Table == nil || r.evicted == 0 {
		return r.mean
	}
	seconds := answer.Table.RetainSeconds(r.price)
	follow(&r.mean, seconds, &r.retains)
	return seconds
}

func follow(mean *float64, value float64, count *int) {
	if *count < lately {
		*count++
	}
	*mean += (value - *mean) / float64(*count)
}

const (
	// Kept is the priority of blocks whose time is not over; above an engine's default.
	Kept = 60
	// Gone is that of blocks that are not worth any time; below an engine's default.
	Gone = 0
)

// Retention returns retain seconds as a priority from 0 to 100 and a duration, after which the block falls back to the engine's
// default (TensorRT-LLM: 35), where the least recently used goes first.
func Retention(seconds float64) (priority int, duration time.Duration) {
	if !(seconds > 0) {
		return Gone, 0
	}
	return Kept, time.Duration(math.Min(seconds, Edges[len(Edges)-1]) * float64(time.Second)).Truncate(time.Millisecond)
}
