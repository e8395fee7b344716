-- The cache. A value follows the time at which it was written, the time at which it expires, and the bytes that it
-- counts towards the limit, each with 16 digits.
local CACHE_HEADER = 48

local function cache_remove(member)
  local key = base .. ':v:' .. member
  local bytes = tonumber(call('GETRANGE', key, 32, CACHE_HEADER - 1)) or 0
  call('UNLINK', key)
  call('DECRBY', base .. ':vb', text(bytes))
  call('SREM', base .. ':vt:' .. string.match(member, '^[^:]*'), member)
  return call('ZREM', base .. ':vz', member)
end

function methods.cache_get()
  local T, space, digest = take(3)
  local entry = call('GET', base .. ':v:' .. T .. ':' .. space .. ':' .. digest)
  if not entry or tonumber(string.sub(entry, 17, 32)) <= now then
    return {'none'}
  end
  local age = now - tonumber(string.sub(entry, 1, 16))
  return {'ok', string.sub(entry, CACHE_HEADER + 1), math.max(age, 0)}
end

function methods.cache_put()
  local T, space, digest, keep, bytes, max_entries, max_bytes, value = take(8)
  local answer = unlisted(nil)
  if answer then
    return answer
  end
  local member = T .. ':' .. space .. ':' .. digest
  cache_remove(member)
  local till = now + tonumber(keep)
  local header = string.format('%016.0f%016.0f%016.0f', now, till, tonumber(bytes))
  call('SET', base .. ':v:' .. member, header .. value)
  call('ZADD', base .. ':vz', text(till), member)
  if T ~= '' then
    call('SADD', base .. ':vt:' .. T, member)
  end
  local all = call('INCRBY', base .. ':vb', bytes)
  while all > tonumber(max_bytes) or call('ZCARD', base .. ':vz') > tonumber(max_entries) do
    local first_to_expire = call('ZRANGE', base .. ':vz', 0, 0)[1]
    if not first_to_expire then
      call('UNLINK', base .. ':vb')
      break
    end
    cache_remove(first_to_expire)
    all = tonumber(call('GET', base .. ':vb'))
  end
  return {'ok'}
end

-- Examines some entries from a cursor on. Returns how many of them were removed, and the next cursor.
function methods.cache_remove()
  frees_memory()
  local T, space, from = take(3)
  T, space = optional(T), optional(space)
  local removed = 0
  local part = call('ZSCAN', base .. ':vz', from, 'COUNT', 4 * BATCH)
  for at = 1, #part[2], 2 do
    local member = part[2][at]
    local of_T, of_space = string.match(member, '^([^:]*):([^:]*)')
    if (not T or T == of_T) and (not space or space == of_space) then
      removed = removed + cache_remove(member)
    end
  end
  return {'ok', removed, part[1]}
end
