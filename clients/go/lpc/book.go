package lpc

import (
	"container/list"
	"time"
)

// A line of the book: a question, and its answer once that is there.
type line struct {
	id       string
	at       time.Time // when it was asked
	answer   Answer
	answered bool
}

// A book remembers questions and answers, at most so many together: over it the oldest goes, so that what an engine never comes
// back for takes no place from what it asks next. Not safe for concurrent use.
type book struct {
	most  int
	lines map[string]*list.Element
	order list.List // of *line, by when they were asked
}

func newBook(most int) *book {
	return &book{most: most, lines: map[string]*list.Element{}}
}

// ask enters a question, in place of an earlier one of its id.
func (b *book) ask(id string, now time.Time) {
	b.forget(id)
	for len(b.lines) >= b.most {
		b.forget(b.order.Front().Value.(*line).id)
	}
	b.lines[id] = b.order.PushBack(&line{id: id, at: now})
}

// answer enters an answer. Answers to what nobody has asked are nothing.
func (b *book) answer(id string, answer Answer) {
	if element := b.lines[id]; element != nil {
		found := element.Value.(*line)
		found.answer, found.answered = answer, true
	}
}

// take returns an answer and forgets the question; false: it is not there.
func (b *book) take(id string) (Answer, bool) {
	element := b.lines[id]
	if element == nil {
		return Answer{}, false
	}
	b.forget(id)
	found := element.Value.(*line)
	return found.answer, found.answered
}

func (b *book) forget(id string) {
	if element := b.lines[id]; element != nil {
		b.order.Remove(element)
		delete(b.lines, id)
	}
}

// forgetUnanswered forgets what was asked on a stream that is over. What was answered stays.
func (b *book) forgetUnanswered() {
	for element := b.order.Front(); element != nil; {
		next := element.Next()
		if found := element.Value.(*line); !found.answered {
			b.forget(found.id)
		}
		element = next
	}
}

// waitsSince returns when the oldest question was asked that has no answer; false: there is none.
func (b *book) waitsSince() (time.Time, bool) {
	for element := b.order.Front(); element != nil; element = element.Next() {
		if found := element.Value.(*line); !found.answered {
			return found.at, true
		}
	}
	return time.Time{}, false
}
