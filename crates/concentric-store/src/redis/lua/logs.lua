-- Logs of turns. The first turns of a log are those of its parent (`parent_len`), so that a fork copies none. An
-- entry has the checksum of this turn and of those before it, the bytes of these turns, and the turn.
local CHAIN = 40
local HEADER = 56
local ROOT = 'concentric/turns/1'

local function log_key(log)
  return base .. ':g:' .. log
end

local function turns_key(log)
  return base .. ':gt:' .. log
end

local function forks_key(log)
  return base .. ':gc:' .. log
end

local function log_new(parent, len, depth)
  local log = text(next_version())
  call('HSET', log_key(log), 'parent', parent, 'len', text(len), 'depth', text(depth), 'owned', '1')
  if parent ~= '' then
    call('ZADD', forks_key(parent), text(len), log)
  end
  return log
end

-- The parts of the first `len` turns of a log, the newest part first. More ancestors are in no log that these
-- methods have written, and could be a circle.
local function log_parts(log, len)
  local parts = {}
  local hi = len
  while log ~= '' and #parts <= 18 do
    local found = call('HMGET', log_key(log), 'parent', 'len', 'depth')
    local start = tonumber(found[2] or 0)
    local lo = math.min(start, hi)
    parts[#parts + 1] = {log = log, lo = lo, hi = hi, start = start, depth = tonumber(found[3] or 0)}
    hi = lo
    log = found[1] or ''
  end
  return parts
end

-- The checksum of the first `len` turns of a log, and their bytes; nil if the last one is missing.
local function log_end(log, len)
  if len == 0 then
    return ROOT, 0
  end
  for _, part in ipairs(log_parts(log, len)) do
    if part.lo <= len - 1 and part.hi > len - 1 then
      local entry = call('LINDEX', turns_key(part.log), len - 1 - part.start)
      if not entry then
        return nil
      end
      return string.sub(entry, 1, CHAIN), tonumber(string.sub(entry, CHAIN + 1, HEADER))
    end
  end
  return nil
end

-- The entries of the turns of a log from position `from` to before `len`.
local function log_read(log, from, len)
  local entries = {}
  local parts = log_parts(log, len)
  for at = #parts, 1, -1 do
    local part = parts[at]
    local lo = math.max(part.lo, from)
    if lo < part.hi then
      local some = call('LRANGE', turns_key(part.log), lo - part.start, part.hi - 1 - part.start)
      if #entries == 0 then
        entries = some
      else
        for _, entry in ipairs(some) do
          entries[#entries + 1] = entry
        end
      end
    end
  end
  return entries
end

-- The seconds for which staged turns are kept.
local STAGED = 600

local function staged_key(id)
  return base .. ':p:' .. id
end

-- Begins a list of staged turns, to which the caller pushes entries. It has a first entry, since the server deletes
-- empty lists, and an entry is pushed only if the list exists, so that each list expires.
function methods.stage()
  local key = staged_key((take(1)))
  call('UNLINK', key)
  call('RPUSH', key, '')
  call('EXPIRE', key, STAGED)
  return {'ok'}
end

-- The new turns that are the next arguments: each after its digest; or, after their number and '+', the key of their
-- staged entries, the checksum and the bytes of the turns before them, and those that they end with.
local function take_turns()
  local count, how = take(2)
  local new = {count = tonumber(count)}
  if how == '+' then
    local id, before_chain, before_bytes, chain, bytes = take(5)
    new.key = staged_key(id)
    new.before_chain, new.before_bytes = before_chain, tonumber(before_bytes)
    new.chain, new.bytes = chain, tonumber(bytes)
    staged = new.key
  else
    new.first = cursor
    cursor = cursor + 2 * new.count
  end
  return new
end

-- Whether new turns are complete, and follow turns with these bytes, the last of which has the checksum `chain`.
local function may_append(new, chain, bytes)
  return not new.key
    or new.before_chain == chain and new.before_bytes == bytes and call('LLEN', new.key) == new.count + 1
end

-- Appends turns to a log that they may be appended to. Returns the last checksum, the number of turns and their bytes.
local function log_append(log, chain, len, bytes, new)
  local key = turns_key(log)
  if not new.key then
    local entries = {}
    for n = 1, new.count do
      local digest, body = ARGV[new.first + 2 * n - 1], ARGV[new.first + 2 * n]
      chain = redis.sha1hex(chain .. digest)
      bytes = bytes + #body
      entries[n] = chain .. string.format('%016.0f', bytes) .. body
    end
    in_parts('RPUSH', key, entries, 1)
    return chain, len + new.count, bytes
  end
  call('LPOP', new.key)
  if call('EXISTS', key) == 0 then
    call('PERSIST', new.key)
    call('RENAME', new.key, key)
  else
    for _ = 1, new.count do
      call('LMOVE', new.key, key, 'LEFT', 'RIGHT')
    end
  end
  return new.chain, len + new.count, new.bytes
end

-- Creates a log that begins with the first `len` turns of a log, and has at most `depth` ancestors.
local function log_fork(log, len, depth)
  local parts = log_parts(log, len)
  for _, part in ipairs(parts) do
    if part.lo < part.hi then
      if part.depth < depth then
        return log_new(part.log, part.hi, part.depth + 1)
      end
      local copy = log_new('', 0, 0)
      in_parts('RPUSH', turns_key(copy), log_read(log, 0, len), 1)
      return copy
    end
  end
  return log_new('', 0, 0)
end

-- Removes the turns of a log after the first `len` of its own.
local function log_trim(log, len)
  if len <= 0 then
    call('UNLINK', turns_key(log))
  else
    call('LTRIM', turns_key(log), 0, len - 1)
  end
end

-- Deletes the turns of a log, and of its ancestors, that no run or conversation has. Its owner does not refer to it
-- any more.
local function log_drop(log)
  call('HDEL', log_key(log), 'owned')
  while log ~= '' do
    local found = call('HMGET', log_key(log), 'parent', 'len', 'owned')
    if not found[2] or found[3] then
      return
    end
    local last = call('ZREVRANGE', forks_key(log), 0, 0, 'WITHSCORES')[2]
    if last then
      log_trim(log, tonumber(last) - tonumber(found[2]))
      return
    end
    call('UNLINK', log_key(log), turns_key(log), forks_key(log))
    if found[1] ~= '' then
      call('ZREM', forks_key(found[1]), log)
    end
    log = found[1]
  end
end

-- Removes the turns of a log after the first `len`; or returns another log with these, if other logs or its
-- ancestors have the removed ones.
local function log_cut(log, len)
  local own = tonumber(call('HGET', log_key(log), 'len') or 0)
  if own > len or call('ZCOUNT', forks_key(log), '(' .. text(len), '+inf') > 0 then
    return log_fork(log, len, 16)
  end
  log_trim(log, len - own)
  return log
end

-- The code that rejects a change of a list of turns, and its number; or the checksum and the bytes of the turns
-- that the change keeps before the `new` ones.
local function log_check(list, keep, new, new_bytes, max)
  if keep > list.len then
    return 'keep', list.len
  end
  local chain, bytes = list.chain, list.bytes
  if keep < list.len then
    chain, bytes = log_end(list.log, keep)
  elseif keep > 0 then
    local start = tonumber(call('HGET', log_key(list.log), 'len') or 0)
    if start + call('LLEN', turns_key(list.log)) ~= keep then
      chain = nil
    end
  end
  if not chain then
    return 'corrupt', list.len
  end
  if bytes + new_bytes > max then
    return 'too_large', bytes + new_bytes
  end
  if not may_append(new, chain, bytes) then
    return 'restage', 0
  end
  return nil, chain, bytes
end

-- The checksum and the bytes of the first `keep` turns of a list, which new turns may follow.
local function log_kept(list, keep)
  if not list or keep > list.len then
    return {'ok', ROOT, 0}
  end
  local chain, bytes = list.chain, list.bytes
  if keep < list.len then
    chain, bytes = log_end(list.log, keep)
  end
  -- A write finds that the last one is missing.
  return {'ok', chain or ROOT, bytes or 0}
end
