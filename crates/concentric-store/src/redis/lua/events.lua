-- The events of runs. A log is a hash, and a stream of which each entry has the events that were written together: its id
-- is the number of the first of them and the time of the write, and each event follows its length, of four bytes. A log
-- that was removed is a hash without a tag, so that its writer does not begin it again. All keys expire.

-- How many seconds logs that were removed are not begun again.
local REMOVED = 3600

local function events_of(member)
  return base .. ':j:' .. member, base .. ':js:' .. member
end

-- Keeps the log for the time `keep` from now on.
local function events_touch(member, keep)
  local log, events = events_of(member)
  local till = now + tonumber(keep)
  call('HSET', log, 'at', text(now), 'till', text(till))
  call('ZADD', base .. ':jz', text(till), member)
  local milliseconds = text(math.ceil(tonumber(keep) / 1000))
  local T = string.match(member, '^[^:]*')
  for _, key in ipairs({log, events, base .. ':jz', base .. ':jt:' .. T, base .. ':jl:' .. T}) do
    call('PEXPIRE', key, milliseconds)
  end
end

local function events_unindexed(member)
  local T, name = string.match(member, '^([^:]*):(.*)$')
  call('ZREM', base .. ':jz', member)
  call('ZREM', base .. ':jt:' .. T, name)
  call('ZREM', base .. ':jl:' .. T, name)
end

-- Removes a log. Its writer, and those that took over until `till`, do not begin it again.
local function events_remove(member, till)
  local log, events = events_of(member)
  till = math.max(till, tonumber(call('HGET', log, 'since') or 0))
  call('UNLINK', log, events)
  call('HSET', log, 'since', text(till), 'till', text(now + REMOVED * 1000000))
  call('EXPIRE', log, REMOVED)
  events_unindexed(member)
end

-- The keys with the times of the last removals: of the logs of a conversation, without its id, and of those of the
-- tenant.
local function events_removals(T)
  return base .. ':jd:' .. redis.sha1hex(T), base .. ':jd'
end

local function events_refuse(key, till)
  call('SET', key, text(math.max(till, tonumber(call('GET', key) or 0))), 'EX', REMOVED)
end

-- Removes some logs of a conversation, and refuses those that were to begin until `till`; returns whether more may be
-- left.
local function events_remove_of(T, till)
  events_refuse(events_removals(T), till)
  local names = call('ZRANGE', base .. ':jt:' .. T, 0, 4 * BATCH - 1)
  for _, name in ipairs(names) do
    events_remove(T .. ':' .. name, till)
  end
  return #names == 4 * BATCH
end

-- Removes some logs of the tenant; returns whether there were any.
local function events_remove_all()
  events_refuse(base .. ':jd', now)
  local members = call('ZRANGE', base .. ':jz', 0, 4 * BATCH - 1)
  for _, member in ipairs(members) do
    events_remove(member, now)
  end
  return #members > 0
end

-- Removes some expired logs; returns whether more may be left.
local function events_expire()
  local members = call('ZRANGEBYSCORE', base .. ':jz', '-inf', text(now), 'LIMIT', 0, 4 * BATCH)
  for _, member in ipairs(members) do
    call('UNLINK', events_of(member))
    events_unindexed(member)
  end
  return #members == 4 * BATCH
end

-- The fields of a log, unless it has expired.
local function events_open(member)
  local log = events_of(member)
  local f = call('HMGET', log, 'till', 'tag', 'first', 'next', 'bytes', 'ended', 'at', 'since')
  if not f[1] or tonumber(f[1]) <= now then
    return nil
  end
  return {tag = f[2], first = tonumber(f[3]), next = tonumber(f[4]), bytes = tonumber(f[5]), is_ended = f[6] == '1',
    at = tonumber(f[7]), since = tonumber(f[8] or 0)}
end

function methods.events_begin()
  local T, name, tag, keep, since = take(5)
  local member = T .. ':' .. name
  for _, key in ipairs({events_removals(T)}) do
    if tonumber(since) <= tonumber(call('GET', key) or 0) then
      return {'stale'}
    end
  end
  local log = events_open(member)
  if log and log.tag == tag then
    return {'ok'}
  elseif log and (log.since > tonumber(since) or not log.tag and log.since == tonumber(since)) then
    return {'stale'}
  end
  events_expire()
  local key, events = events_of(member)
  call('UNLINK', key, events)
  call('HSET', key, 'tag', tag, 'since', since, 'first', '1', 'next', '1', 'bytes', '0', 'ended', '0')
  call('ZADD', base .. ':jt:' .. T, text(now), name)
  -- In the order in which the logs begin.
  local live = base .. ':jl:' .. T
  local last = tonumber(call('ZRANGE', live, -1, -1, 'WITHSCORES')[2] or 0)
  call('ZADD', live, text(math.max(now, last + 1)), name)
  events_touch(member, keep)
  return {'ok'}
end

-- The number of the events of an entry of the stream, their bytes, the number of the first, and the time of the write.
local function events_entry(entry)
  local count = tonumber(entry[2][2])
  local first, at = string.match(entry[1], '^(%d+)-(%d+)$')
  return count, #entry[2][4] - 4 * count, tonumber(first), tonumber(at)
end

-- The time for which readers may lack events beyond the limits, and how many times the limits may be exceeded
-- meanwhile.
local BEHIND, BEHIND_EVENTS, BEHIND_BYTES = 2000000, 8, 3

function methods.events_append()
  local T, name, tag, keep, max_events, max_bytes, first, count, is_end, frames = take(10)
  first, count = tonumber(first), tonumber(count)
  local member = T .. ':' .. name
  local log = events_open(member)
  if not log then
    return {'none'}
  elseif log.tag ~= tag then
    return {'stale'}
  end
  if log.is_ended then
    return {first + count <= log.next and 'ok' or 'ended'}
  end
  local key, events = events_of(member)
  if first > log.next then
    call('UNLINK', events)
    log.first, log.next, log.bytes = first, first, 0
  elseif call('EXISTS', events) == 0 then
    -- It has no events yet, or the server has evicted them.
    log.first, log.bytes = log.next, 0
  end
  if first + count > log.next then
    local at = 1
    for _ = first, log.next - 1 do
      at = at + 4 + struct.unpack('<I4', frames, at)
    end
    count = first + count - log.next
    call('XADD', events, text(log.next) .. '-' .. text(now), 'n', text(count), 'd', string.sub(frames, at))
    log.bytes = log.bytes + #frames - at + 1 - 4 * count
    log.next = log.next + count
  end
  while log.next - log.first > tonumber(max_events) or log.bytes > tonumber(max_bytes) do
    local oldest = call('XRANGE', events, '-', '+', 'COUNT', 2)
    if #oldest < 2 then
      break
    end
    local _, bytes, _, at = events_entry(oldest[1])
    local is_far = log.next - log.first > BEHIND_EVENTS * tonumber(max_events)
      or log.bytes > BEHIND_BYTES * tonumber(max_bytes)
    if not is_far and at + BEHIND > now then
      break
    end
    local _, _, second = events_entry(oldest[2])
    call('XDEL', events, oldest[1][1])
    log.first, log.bytes = second, log.bytes - bytes
  end
  call('HSET', key, 'first', text(log.first), 'next', text(log.next), 'bytes', text(log.bytes), 'ended', is_end)
  if is_end == '1' then
    call('ZREM', base .. ':jl:' .. T, name)
  end
  events_touch(member, keep)
  return {'ok'}
end

-- The tag of a log, the number of its next event, whether it has ended, the time since the last write, and the number of
-- the first event; then the events, in the form of the stream, from the entry with the first event on.
function methods.events_read()
  local T, name, after, most = take(4)
  local member = T .. ':' .. name
  local log = events_open(member)
  if not log or not log.tag then
    return {'none'}
  end
  local wanted = math.min(math.max(tonumber(after) + 1, log.first), log.next)
  local answer = {'ok', log.tag, text(log.next), log.is_ended and 1 or 0, text(math.max(now - log.at, 0)), text(wanted)}
  if wanted == log.next then
    return answer
  end
  local _, events = events_of(member)
  local bytes = 0
  local from = call('XREVRANGE', events, text(wanted), '-', 'COUNT', 1)
  local start = from[1] and from[1][1] or '-'
  -- The server may have evicted the events.
  local oldest = call('XRANGE', events, start, '+', 'COUNT', 1)[1]
  local _, _, first = events_entry(oldest or {text(log.next) .. '-0', {'n', '0', 'd', ''}})
  answer[6] = text(math.max(wanted, first))
  repeat
    local entries = call('XRANGE', events, start, '+', 'COUNT', 16)
    for _, entry in ipairs(entries) do
      local _, size, first = events_entry(entry)
      if bytes > 0 and bytes + size > tonumber(most) then
        return answer
      end
      bytes = bytes + size
      answer[#answer + 1] = text(first)
      answer[#answer + 1] = entry[2][4]
      start = '(' .. entry[1]
    end
  until #entries < 16
  return answer
end

function methods.events_newest()
  local T, prefix = take(2)
  for _, name in ipairs(call('ZREVRANGE', base .. ':jl:' .. T, 0, 999)) do
    if string.sub(name, 1, #prefix) == prefix then
      local log = events_open(T .. ':' .. name)
      if log and log.tag and not log.is_ended then
        return {'ok', name}
      end
    end
  end
  return {'none'}
end

-- Removes a log, unless it was begun after `till`, or some of those of a conversation. Returns whether more may be
-- left.
function methods.events_remove()
  frees_memory()
  local T, name, till = take(3)
  name, till = optional(name), tonumber(till)
  if not name then
    return {'ok', events_remove_of(T, till) and 1 or 0}
  end
  local member = T .. ':' .. name
  local log = events_open(member)
  if not log or log.since <= till then
    events_remove(member, till)
  end
  return {'ok', 0}
end
