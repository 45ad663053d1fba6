package lpc

import (
	"math"
	"time"
)

// FirstLifetime is assumed before anything was evicted, seconds.
const FirstLifetime = 60.0

// MaxLifetime bounds what an eviction can teach, seconds.
const MaxLifetime = 86400.0

// Lifetime measures how long blocks of average conversations live in a cache: the mean of now - key at eviction, fading with
// the share of the capacity that was evicted. An engine that evicts by itself feeds it from its events of removed blocks.
type Lifetime struct {
	capacity float64
	seconds  float64
}

// NewLifetime is of a cache of so many blocks.
func NewLifetime(capacity int) *Lifetime {
	return &Lifetime{math.Max(float64(capacity), 1), FirstLifetime}
}

// Seconds is the lifetime.
func (l *Lifetime) Seconds() float64 { return l.seconds }

// Evicted learns of a block with this key, evicted now; both seconds since the epoch.
func (l *Lifetime) Evicted(key, now float64) {
	age := math.Min(math.Max(now-key, 0), MaxLifetime)
	if !math.IsNaN(age) {
		l.seconds += (age - l.seconds) / l.capacity
	}
}

const (
	// Kept is the priority of blocks whose time has not come; above an engine's default.
	Kept = 60
	// Gone is that of blocks that are not worth any time; below an engine's default.
	Gone = 0
)

// Retention says a credit to an engine that is told a priority from 0 to 100 and how long it holds, after which the block falls
// back to the default (TensorRT-LLM: 35), where the least recently used goes first. A block of an average conversation lives for
// the lifetime of its cache, this one for that and its credit: for so long it is kept above the default. Both in seconds.
func Retention(credit, lifetime float64) (priority int, duration time.Duration) {
	life := lifetime + credit
	if !(life > 0) {
		return Gone, 0
	}
	return Kept, time.Duration(math.Min(life, MaxLifetime) * float64(time.Second)).Truncate(time.Millisecond)
}
